//! Generates client and server of `hello.Greeter`. Described in Rust, so that the
//! example builds without protoc; the same from a file:
//!
//! ```text
//! syntax = "proto3";
//! package hello;
//! service Greeter { rpc SayHello (HelloRequest) returns (HelloReply); }
//! message HelloRequest { string name = 1; }
//! message HelloReply { string message = 1; }
//! ```

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let say_hello = Method::builder()
        .name("say_hello")
        .route_name("SayHello")
        .input_type("crate::HelloRequest")
        .output_type("crate::HelloReply")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let greeter = Service::builder().name("Greeter").package("hello").method(say_hello).build();
    Builder::new().compile(&[greeter]);
}
