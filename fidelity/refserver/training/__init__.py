"""How the shipped profiles were made: corpus, tokenizer, model, training (extra [train]), card."""
