"""What is counted of ordinary steps, by hooks in C where there is a compiler."""
