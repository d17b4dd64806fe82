"""Pages: results in, one HTML file out that holds everything it shows and loads nothing."""
