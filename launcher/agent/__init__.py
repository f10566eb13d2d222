"""What runs once per node beside the ranks: it starts them, watches them, and decides about their failures."""
