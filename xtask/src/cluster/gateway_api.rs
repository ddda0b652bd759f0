//! The Gateway API's own conformance tests for meshes, their echo servers, and the definitions of its kinds:
//! built once into the cache from pinned Go modules.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::image::{Contents, Image};
use crate::workspace::Workspace;
use crate::{cache, go, process};

/// The tests, and the API that they are of.
const TESTS: &str = "gateway-conformance";
const API: &str = "sigs.k8s.io/gateway-api";
/// The oldest Go that builds the tests.
const GO: [u32; 3] = [1, 27, 0];
/// The servers in the tests' pods, and the client that runs there.
const ECHO: &str = "istio-echo";
const ISTIO: &str = "istio.io/istio";
/// As the tests' manifests name it.
const IMAGE: &str = "registry.k8s.io/gateway-api/conformance/echo-advanced:v0.1.0";

/// What the tests need.
pub(super) struct GatewayApi {
    /// The tests, as a program of Go's test framework.
    pub(super) program: PathBuf,
    /// A folder with the definitions of the kinds.
    pub(super) definitions: PathBuf,
    /// An archive with the image of the pods.
    pub(super) image: PathBuf,
}

impl GatewayApi {
    /// # Errors
    ///
    /// Says what cannot be had, with the compiler's reason on the screen.
    pub(super) fn build(workspace: &Workspace) -> Result<Self> {
        let tests = workspace.go_module(TESTS);
        let folder = cache::entry(TESTS, (go::pins(&tests)?, GO));
        cache::once(&folder, |partial| {
            let mut go = go::command(GO, &tests, &["test", "-c"])?;
            process::run(go.args(["-trimpath", "-o"]).arg(partial.join("conformance")).arg("."))
        })
        .context("the conformance tests of the Gateway API could not be built")?;
        let api = go::module_folder(GO, &tests, API)?;
        Ok(Self {
            program: folder.join("conformance"),
            definitions: api.join("config/crd/standard"),
            image: echo_image(workspace)?,
        })
    }
}

fn echo_image(workspace: &Workspace) -> Result<PathBuf> {
    let module = workspace.go_module(ECHO);
    let folder = cache::entry(ECHO, go::pins(&module)?);
    let archive = folder.join("echo.tar");
    cache::once(&folder, |partial| {
        let mut go = go::build_command(&module)?;
        let package = |name: &str| format!("{ISTIO}/pkg/test/echo/cmd/{name}");
        go.args(["-trimpath", "-ldflags", "-s -w", "-o"]).arg(partial.join("bin/"));
        process::run(go.args([package("client"), package("server")]))?;
        let sources = go::module_folder(go::VERSION, &module, ISTIO)?;
        write_image(partial, &sources.join("tests/testdata/certs/dns"))
    })
    .context("the echo server of the conformance tests could not be built")?;
    Ok(archive)
}

fn write_image(folder: &Path, certificates: &Path) -> Result<()> {
    let bin = folder.join("bin");
    let (client, server) = (bin.join("client"), bin.join("server"));
    let programs =
        [("/usr/local/bin/client", client.as_path()), ("/usr/local/bin/server", server.as_path())];
    let mut contents = Contents::of_programs(&programs)?;
    contents.copy("/cert.crt", &certificates.join("cert-chain.pem"))?;
    contents.copy("/cert.key", &certificates.join("key.pem"))?;
    let settings = json!({
        "Env": ["PATH=/usr/local/bin"],
        "Entrypoint": ["/usr/local/bin/server"],
        "User": "1338",
        "WorkingDir": "/",
    });
    let image = Image::of(&contents, &settings, &IMAGE.parse()?, None)?;
    image.write_archive(&folder.join("echo.tar"))
}
