"""Study reports: each turns the results of one study into tables, figures and replication verdicts."""
