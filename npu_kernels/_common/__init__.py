"""What every folder uses: checks of arguments, and warnings of the user's line."""
