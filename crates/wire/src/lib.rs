//! Protobuf messages and services between the parts, and conversions to the model.
