"""The golden values of AdamW in crates/grawa-core/src/optimizer.rs, by torch.optim.AdamW."""

import torch

GRADIENTS = [[0.5, 0.25], [-1.0, 3.0], [0.1, 0.2], [0.0, -0.5], [20.0, 1e-4], [-0.3, 0.7]]
# β₁, β₂, ε, weight decay, rate.
SETTINGS = [(0.9, 0.999, 1e-8, 1e-2, 1e-3), (0.9, 0.95, 1e-8, 0.1, 0.1), (0.5, 0.99, 1e-3, 0.0, 0.05)]

print(f"PyTorch {torch.__version__}")
for beta1, beta2, eps, weight_decay, rate in SETTINGS:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    adamw = torch.optim.AdamW([x], lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
    rows = []
    for gradient in GRADIENTS:
        x.grad = torch.tensor(gradient)
        adamw.step()
        rows.append([float(f"{value:.9g}") for value in x.tolist()])
    print(f"(({beta1}, {beta2}, {eps}, {weight_decay}, {rate}), {rows}),")
