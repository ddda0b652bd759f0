//! In daprd's place as daprd: kinds of differences that Dapr's own suite found, each with daprd's answer
//! as the expectation. A number is that of the kind.

mod streams;
