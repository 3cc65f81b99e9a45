"""What the claims in the README rest on: models, peers, runs and committed results; never imported by graphopt."""
