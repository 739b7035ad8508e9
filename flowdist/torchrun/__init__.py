"""A command line of torchrun as a topology with one role: `options` is what there is, `settle` what becomes of it."""
