"""How the shipped profiles were made: corpus, tokenizer, model in torch, training, evaluation. Needs the extra [train]."""
