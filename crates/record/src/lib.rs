//! Run records, histograms, statistics and comparisons of the lab; pure.
