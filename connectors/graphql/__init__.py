"""The connector `graphql`: answers of GraphQL servers."""
