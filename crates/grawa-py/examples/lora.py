"""LoRA with Hugging Face's Trainer and peft: workers share the adapters alone.

    grawa launch --workers 2 -- python lora.py

The model is a small GPT-2 with random numbers, so nothing is downloaded; --model NAME takes a pretrained one.
"""

import argparse
import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, TrainingArguments

from grawa.hugging_face import Trainer


class Bytes(torch.utils.data.Dataset):
    """Stretches of a file, a token for each byte."""

    def __init__(self, data: bytes, length: int):
        self.data, self.length = torch.tensor(list(data)), length

    def __len__(self):
        return len(self.data) // self.length

    def __getitem__(self, index):
        tokens = self.data[index * self.length : (index + 1) * self.length]
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a pretrained causal language model")
    parser.add_argument("--file", default=str(Path(__file__).parents[3] / "LICENSE-APACHE"))
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--method", default="mean:period=8")
    parser.add_argument("--out", default="lora-out")
    args = parser.parse_args()

    torch.manual_seed(0)
    small = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = AutoModelForCausalLM.from_pretrained(args.model) if args.model else GPT2LMHeadModel(small)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"))

    data = Path(args.file).read_bytes()
    cut = len(data) * 9 // 10
    # Each worker has a folder of its own.
    folder = os.path.join(args.out, os.environ.get("GRAWA_LOCAL_RANK", "0"))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=8, learning_rate=1e-2, eval_strategy="steps", eval_steps=args.steps // 2,
            logging_steps=args.steps // 2, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Bytes(data[:cut], 64),
        eval_dataset=Bytes(data[cut:], 64),
        grawa={"method": args.method},
    )  # fmt: skip
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    if trainer.run.is_first:
        print(f"averaged adapters: evaluation loss {before:.3f} before, {after:.3f} after", flush=True)
        trainer.save_averaged(os.path.join(args.out, "averaged"))


if __name__ == "__main__":
    main()
