"""What several corpora share: near duplicates of records, and the parts that a corpus is split into."""
