"""The policy: tokenizer and chat template, model and critic, engines that sample from it."""
