//! `tollway front` as a process, in front of apps: foreign clients over TLS 1.2 and 1.3, many
//! certificates, clients with and without their own, files that change under load.

mod certificates;
mod clients;
mod foreign;
mod http2;
mod page;
mod reload;
mod requests;
mod start;
mod tls;
mod world;
