"""What the verbs share; it imports none of them."""
