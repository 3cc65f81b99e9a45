"""What the claims in the README rest on: models, peers, runs and their committed results; never imported by graphopt."""
