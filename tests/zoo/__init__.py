"""The zoo: small trainings with one planted fault each, healthy ones of many kinds, and how the findings judge them."""
