"""What measures on the pair in use, with its form; and the chip that says whether that was done."""
