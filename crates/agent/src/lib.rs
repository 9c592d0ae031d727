//! leadsman: agent.
