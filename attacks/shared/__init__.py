"""What several attacks share: statistics of losses. No attack is registered here."""
