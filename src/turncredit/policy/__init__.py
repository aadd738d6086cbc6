"""The policy: model and critic, tokenizer and chat template, sampling engines."""
