"""What a plain CPU machine lacks of a GPU machine, and the fault that the tests put into the MoE."""
