"""What people and programs look at: the terminal table, the JSON object, the HTML report."""
