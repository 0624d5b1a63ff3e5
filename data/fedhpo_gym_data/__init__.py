"""Arrays of `fedhpo_gym`, whose cards travel with that package; there is no code here."""
