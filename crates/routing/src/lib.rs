//! Pure decisions of the data path: match a route, pick an endpoint, retry or not.
