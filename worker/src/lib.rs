//! The training engine and the agent that follows the coordinator.
