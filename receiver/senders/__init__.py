"""What a sender must remember so that what it sends again can be told from what it sends anew."""
