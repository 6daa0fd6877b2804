"""What a method file is written against: clients, the server, the verbs between them, what they hold and count."""
