//! JSON bodies: heartbeats, topic and group configuration, statistics, routes, registration.
