"""Dynamic trees: how they are chosen by the draft's probabilities and by costs, predicted and drafted."""
