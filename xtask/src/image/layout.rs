//! The parts of an image (OCI image specification 1.1): layer, configuration, manifest, index.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::contents::Contents;
use super::{gzip, tar};

/// When it was made, for those who ask: the time that all images of all versions have.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Where an image is found: `tollway:1` is `docker.io/library/tollway:1`, as container runtimes read it.
pub(crate) struct Name {
    given: String,
    full: String,
}

/// A part of an image under the name of its hash.
struct Blob {
    bytes: Vec<u8>,
    media_type: &'static str,
}

pub(crate) struct Image {
    layer: Blob,
    config: Blob,
    manifest: Blob,
    index: Vec<u8>,
    /// The list by which Docker finds the parts.
    docker: Vec<u8>,
}

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(given: &str) -> Result<Self> {
        let wrong = || format!("`{given}` is no name of an image; write it as NAME:TAG");
        let (path, tag) = given.rsplit_once(':').with_context(wrong)?;
        let is_word = |word: &str, more: &str| {
            word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        let parts: Vec<&str> = path.split('/').collect();
        let is_host = parts.len() > 1 && (parts[0].contains(['.', ':']) || parts[0] == "localhost");
        let names = if is_host { &parts[1..] } else { &parts[..] };
        let is_name =
            |part: &&str| is_word(part, "._-") && !part.contains(|c: char| c.is_ascii_uppercase());
        if !names.iter().all(is_name) || !is_word(tag, "._-") {
            bail!(wrong());
        }
        let full = match (is_host, parts.len()) {
            (true, _) => given.to_owned(),
            (false, 1) => format!("docker.io/library/{given}"),
            (false, _) => format!("docker.io/{given}"),
        };
        Ok(Self { given: given.to_owned(), full })
    }
}

impl Name {
    /// With the registry.
    pub(super) fn full(&self) -> &str {
        &self.full
    }

    fn tag(&self) -> &str {
        self.given.rsplit_once(':').map_or("", |(_, tag)| tag)
    }
}

impl Blob {
    fn json(value: &Value, media_type: &'static str) -> Self {
        Self { bytes: value.to_string().into_bytes(), media_type }
    }

    fn digest(&self) -> String {
        digest(&self.bytes)
    }

    /// Its path in a layout.
    fn path(&self) -> String {
        format!("blobs/{}", self.digest().replacen(':', "/", 1))
    }

    /// How another part refers to it.
    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest(), "size": self.bytes.len()})
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Image {
    /// An image with these settings for its containers, in the form of the specification. Without a level
    /// its layer is not compressed.
    pub(crate) fn of(
        contents: &Contents,
        settings: &Value,
        name: &Name,
        level: Option<u8>,
    ) -> Result<Self> {
        let unpacked = layer(contents)?;
        let diff = digest(&unpacked);
        let layer = match level {
            Some(level) => Blob {
                bytes: gzip::compress(&unpacked, level)?,
                media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
            },
            None => Blob { bytes: unpacked, media_type: "application/vnd.oci.image.layer.v1.tar" },
        };
        let platform = json!({"architecture": contents.architecture, "os": "linux"});
        let config = json!({
            "architecture": contents.architecture,
            "os": "linux",
            "created": CREATED,
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [diff]},
            "history": [{"created": CREATED, "created_by": "cargo xtask image"}],
        });
        let config = Blob::json(&config, "application/vnd.oci.image.config.v1+json");
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        let manifest = Blob::json(&manifest, manifest_type);
        let mut of_manifest = manifest.descriptor();
        of_manifest["platform"] = platform;
        of_manifest["annotations"] = json!({
            "io.containerd.image.name": name.full(),
            "org.opencontainers.image.ref.name": name.tag(),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [of_manifest],
        });
        let docker =
            json!([{"Config": config.path(), "RepoTags": [name.given], "Layers": [layer.path()]}]);
        let (index, docker) = (index.to_string().into_bytes(), docker.to_string().into_bytes());
        Ok(Self { layer, config, manifest, index, docker })
    }

    /// The digest of the manifest, by which registries and runtimes name the image.
    pub(super) fn digest(&self) -> String {
        self.manifest.digest()
    }

    /// Where the layer is in the layout.
    #[cfg(test)]
    pub(super) fn layer_path(&self) -> String {
        self.layer.path()
    }

    /// What a node fetches, in bytes.
    pub(super) fn sent_bytes(&self) -> u64 {
        [&self.layer, &self.config, &self.manifest].map(|blob| blob.bytes.len() as u64).iter().sum()
    }

    /// Writes a folder in the form of the OCI image layout.
    pub(super) fn write_layout(&self, folder: &Path) -> Result<()> {
        for (path, bytes) in self.files() {
            let file = folder.join(&path);
            let failed = || format!("could not write {}", file.display());
            if let Some(above) = file.parent() {
                std::fs::create_dir_all(above).with_context(failed)?;
            }
            std::fs::write(&file, bytes).with_context(failed)?;
        }
        Ok(())
    }

    /// Writes the same as one file.
    pub(crate) fn write_archive(&self, file: &Path) -> Result<()> {
        std::fs::write(file, self.archive()?)
            .with_context(|| format!("could not write {}", file.display()))
    }

    /// The layout as an archive.
    pub(super) fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Archive::default();
        for (path, bytes) in self.files() {
            archive.file(&path, 0o644, bytes)?;
        }
        Ok(archive.end())
    }

    /// The files of the layout in the order of their paths.
    fn files(&self) -> Vec<(String, &[u8])> {
        const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
        let blobs = [&self.layer, &self.config, &self.manifest];
        let mut files: Vec<(String, &[u8])> =
            blobs.map(|blob| (blob.path(), blob.bytes.as_slice())).into();
        files.extend([
            ("index.json".to_owned(), self.index.as_slice()),
            ("manifest.json".to_owned(), self.docker.as_slice()),
            ("oci-layout".to_owned(), LAYOUT),
        ]);
        files.sort();
        files
    }
}

/// The files and links of the image as an archive. Of folders there are those of the files, and `/tmp`.
fn layer(contents: &Contents) -> Result<Vec<u8>> {
    let mut archive = tar::Archive::default();
    for (path, file) in contents.files() {
        archive.file(path, file.mode, &file.bytes)?;
    }
    for (path, target) in contents.links() {
        archive.link(path, target)?;
    }
    archive.folder("/tmp", 0o1777)?;
    Ok(archive.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_container_runtimes_do() {
        for (given, full) in [
            ("tollway:1", Some("docker.io/library/tollway:1")),
            ("team/tollway:1", Some("docker.io/team/tollway:1")),
            ("localhost/tollway:1", Some("localhost/tollway:1")),
            ("registry.example:5000/a/b:v1", Some("registry.example:5000/a/b:v1")),
            ("tollway", None),
            ("Tollway:1", None),
            ("a//b:1", None),
            ("tollway:", None),
            ("tollway:a b", None),
        ] {
            let name = given.parse::<Name>().ok();
            assert_eq!(name.as_ref().map(Name::full), full, "{given}");
        }
    }
}
