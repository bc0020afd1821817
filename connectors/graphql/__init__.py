"""The connector `graphql`: responses of GraphQL servers."""
