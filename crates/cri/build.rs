//! Turns `proto/cri.proto` into the messages and the client, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/cri.proto"], ["proto"])?;
    println!("cargo::rerun-if-changed=proto/cri.proto");
    // The server half is a runtime to test against; the linker drops it from the agent.
    tonic_prost_build::configure()
        .bytes(".runtime.v1.ExecSyncResponse")
        .compile_fds(descriptors)?;
    Ok(())
}
