"""Model side of clozeline: Arrow shards -> trained encoder -> Hugging Face export."""
