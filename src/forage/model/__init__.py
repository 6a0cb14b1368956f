"""Models and tokenizers as Hugging Face keeps them: loaded, built from scratch, saved."""
