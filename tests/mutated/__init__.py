"""Valid inputs with one mistake each: whatever the mistake is, the command line answers in words, and soon."""
