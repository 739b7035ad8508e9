"""Problems of a topology: their places in the user's file, their codes, and the page that explains each code."""
