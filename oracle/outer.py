"""Golden numbers of the outer optimizer, by torch.optim.SGD: the tests in crates/grawa-core/src/mix/tests.rs hold them.

DiLoCo (arXiv 2311.08105): SGD with Nesterov's momentum on the centre, whose gradient is the centre less the mean of the
workers. SlowMo (arXiv 1910.00643, Eq. 2-3): the gradient is divided by the learning rate of the local steps, and the
outer rate multiplied by it.
"""

import torch

# The means of the workers at three rounds, and the learning rates of their steps.
MEANS = [[1.0, -2.0, 0.5], [0.75, -1.5, 0.25], [0.5, -1.75, 0.125]]
RATES = [0.1, 0.1, 0.05]


def outer(rate, momentum, nesterov, by_rate):
    centre = torch.nn.Parameter(torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64))
    sgd = torch.optim.SGD([centre], lr=rate, momentum=momentum, nesterov=nesterov)
    for mean, gamma in zip(MEANS, RATES):
        unit = gamma if by_rate else 1.0
        sgd.param_groups[0]["lr"] = rate * unit
        centre.grad = (centre.detach() - torch.tensor(mean, dtype=torch.float64)) / unit
        sgd.step()
        print([round(x, 9) for x in centre.tolist()], [round(x, 9) for x in sgd.state[centre]["momentum_buffer"].tolist()])


for name, settings in {"diloco": (0.7, 0.9, True, False), "slowmo": (1.0, 0.7, False, True)}.items():
    print(name)
    outer(*settings)
