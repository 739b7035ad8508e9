from torch import nn, ones, relu

LAYER = nn.Linear(2, 1)


def run():
    return relu(LAYER(ones(2))).tolist()
