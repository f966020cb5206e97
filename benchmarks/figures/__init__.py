"""Results of docs/benchmarks/*.json in the pages, as tables and a chart."""
