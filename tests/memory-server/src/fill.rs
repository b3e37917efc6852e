//! Copies a local directory into the server, to measure with the data of other servers.

use super::MemoryServer;
use super::data::Data;
use super::tree::{Body, Dir, Tree};
use nfsrdma_xdr::nfs3::{FileHandle, FileType, SetAttributes, Status};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

fn refused(status: Status) -> io::Error {
    io::Error::other(status.name())
}

fn copy(tree: &mut Tree, dir: &FileHandle, from: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, found) = (entry.path(), entry.metadata()?);
        let (kind, body) = if found.is_dir() {
            (FileType::Directory, Body::Dir(Dir::default()))
        } else if found.is_symlink() {
            let target = fs::read_link(&path)?.into_os_string().into_vec();
            (FileType::Symlink, Body::Symlink(target))
        } else if found.is_file() {
            (FileType::Regular, Body::File(Data::default()))
        } else {
            continue;
        };
        let new = SetAttributes {
            mode: Some(found.mode() & 0o7777),
            ..SetAttributes::default()
        };
        let owner = (found.uid(), found.gid());
        let name = entry.file_name();
        let id = tree
            .create(dir, name.as_bytes(), kind, body, &new, owner)
            .map_err(refused)?;
        let handle = tree.handle(id);
        if found.is_dir() {
            copy(tree, &handle, &path)?;
        } else if found.is_file() && found.len() > 0 {
            let mut file = fs::File::open(&path)?;
            let mut piece = vec![0; PIECE.min(found.len() as usize)];
            let mut at = 0;
            loop {
                let n = file.read(&mut piece)?;
                if n == 0 {
                    break;
                }
                let data = tree.file(&handle).map_err(refused)?;
                data.write(at, &piece[..n], true);
                at += n as u64;
            }
        }
    }
    Ok(())
}

impl MemoryServer {
    /// Copies the contents of the local directory `from` into the root: directories, regular files
    /// and symbolic links.
    pub fn fill(&self, from: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        let root = tree.root();
        copy(&mut tree, &root, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_in() {
        let from = std::env::temp_dir().join(format!("nfsrdma-fill-{}", std::process::id()));
        fs::create_dir_all(from.join("d/e")).unwrap();
        let long: Vec<u8> = (0..PIECE + 5).map(|n| n as u8).collect();
        fs::write(from.join("d/long"), &long).unwrap();
        fs::write(from.join("empty"), b"").unwrap();
        let server = MemoryServer::new();
        let filled = server.fill(&from);
        fs::remove_dir_all(&from).unwrap();
        filled.unwrap();
        assert_eq!(server.contents("d/long"), Some(long));
        assert_eq!(server.contents("empty"), Some(Vec::new()));
        assert_eq!(server.names("d").len(), 2);
    }
}
