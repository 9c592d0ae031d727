//! Turns `proto/cri.proto` into the messages and the client, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/cri.proto"], ["proto"])?;
    println!("cargo::rerun-if-changed=proto/cri.proto");
    tonic_prost_build::configure()
        // A runtime to test against.
        .server_mod_attribute(".", "#[cfg(any(test, feature = \"fake\"))]")
        .bytes(".runtime.v1.ExecSyncResponse")
        .bytes(".runtime.v1.Container")
        .bytes(".runtime.v1.Label")
        .compile_fds(descriptors)?;
    Ok(())
}
