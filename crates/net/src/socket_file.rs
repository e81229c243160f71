//! Listening UNIX sockets (SOCK_SEQPACKET) with a name in a directory: the one that applications join at, and that of a wire.
//!
//! Whatever else lies at the path stays there: of files only a socket on which no process listens is removed, such as
//! that of a process that was killed. A socket gets its name when it has its mode and listens, so that one on which no
//! process listens is dead, and none can be reached that is open to other users.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, chmodat, flock, linkat, open, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use thiserror::Error;

/// Bytes of the path of a UNIX socket: `sun_path` of unix(7), without the zero byte at its end.
pub const PATH_BYTES_MAX: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Time for others that take over a dead socket of the same directory.
const TURN_STEPS: u32 = 100;
const TURN_STEP: Duration = Duration::from_millis(10);
/// Attempts while the file at the path changes between looking at it and acting on it.
const ATTEMPTS_MAX: u32 = 8;

/// Why there can be no socket at a path.
#[derive(Debug, Error)]
pub enum Fault {
    #[error("the path has {0} bytes, the path of a socket at most {PATH_BYTES_MAX}")]
    TooLong(usize),
    #[error("a path ends with the name of the socket")]
    Nameless,
    #[error("directory {}: {error}", .directory.display())]
    Directory { directory: PathBuf, error: io::Error },
    /// "a directory".
    #[error("it exists and is {0}, not a socket: it is left as it is")]
    NoSocket(&'static str),
    #[error("another process listens there")]
    InUse,
    #[error("{0}")]
    System(io::Error),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// A path, also by its directory and the name in it.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    directory: OwnedFd,
    name: PathBuf,
}

impl Place {
    fn new(path: &Path) -> Result<Self, Fault> {
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(Fault::TooLong(bytes));
        }
        let name = path.file_name().ok_or(Fault::Nameless)?.into();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(parent, flags, Mode::empty())
            .map_err(|error| Fault::Directory { directory: parent.into(), error: error.into() })?;
        Ok(Self { path: path.into(), directory, name })
    }

    /// The file itself, without following a link; `None` if there is none.
    fn look(&self, name: &Path) -> Result<Option<File>, Fault> {
        match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(File {
                device: stat.st_dev,
                inode: stat.st_ino,
                kind: FileType::from_raw_mode(stat.st_mode),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A lock on the directory: of three processes that exchange one dead socket at a time, two could put back what the
    /// third has brought. Best effort: any process that may read the directory can hold the lock.
    fn turn(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.directory, ".", flags, Mode::empty()).ok()?;
        for _ in 0..TURN_STEPS {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => sleep(TURN_STEP),
                Err(_) => return None,
                Ok(()) => return Some(directory),
            }
        }
        None
    }

    /// Removes `name` if it is still this file.
    fn remove(&self, name: &Path, file: File) {
        if self.look(name).is_ok_and(|found| found == Some(file)) {
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// Which file it is. The number of one that is open, or has another name, is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    inode: u64,
    kind: FileType,
}

/// What lies at a path.
#[derive(Debug)]
enum Found {
    Nothing,
    /// A socket on which no process listens.
    Dead(File),
    Listening(OwnedFd),
}

fn find(place: &Place, flags: SocketFlags) -> Result<Found, Fault> {
    let Some(file) = place.look(&place.name)? else { return Ok(Found::Nothing) };
    match file.kind {
        FileType::Socket => {}
        FileType::Directory => return Err(Fault::NoSocket("a directory")),
        FileType::Symlink => return Err(Fault::NoSocket("a symbolic link")),
        FileType::RegularFile => return Err(Fault::NoSocket("a file")),
        _ => return Err(Fault::NoSocket("a device or a pipe")),
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(&place.path)?) {
        Ok(()) => Ok(Found::Listening(socket)),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        Err(Errno::CONNREFUSED) => Ok(Found::Dead(file)),
        // EAGAIN: more connections wait than it takes. EPROTOTYPE: a socket of another type, which is alive.
        Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Fault::InUse),
        Err(error) => Err(error.into()),
    }
}

/// A socket that listens, with mode 0600. Its file is removed with it.
#[derive(Debug)]
pub struct Listener {
    place: Place,
    socket: OwnedFd,
    file: File,
}

/// What [`connect_or_listen`] became.
#[derive(Debug)]
pub enum Joined {
    Connected(OwnedFd),
    Listening(Listener),
}

impl Listener {
    pub fn new(path: &Path) -> Result<Self, Fault> {
        match connect_or_listen(path)? {
            Joined::Listening(listener) => Ok(listener),
            Joined::Connected(_) => Err(Fault::InUse),
        }
    }

    /// In the place of `dead`, or of nothing; `None` if there is something else meanwhile.
    fn at(place: Place, dead: Option<File>) -> Result<Result<Self, Place>, Fault> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let unnamed = PathBuf::from(format!(".net-{}", std::process::id()));
        // By the directory's descriptor: a path that is as long as the longest address has no room for this name.
        let address = format!("/proc/self/fd/{}/{}", place.directory.as_raw_fd(), unnamed.display());
        bind(&socket, &SocketAddrUnix::new(address)?)?;
        let file = place.look(&unnamed)?.ok_or(Errno::NOENT)?;
        let named = Self::name(&place, &unnamed, &socket, dead);
        place.remove(&unnamed, file);
        Ok(if named? { Ok(Self { place, socket, file }) } else { Err(place) })
    }

    /// Gives the socket its mode, and its name if nothing else has come there.
    fn name(place: &Place, unnamed: &Path, socket: &OwnedFd, dead: Option<File>) -> Result<bool, Fault> {
        let Place { directory, name, .. } = place;
        chmodat(directory, unnamed, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        listen(socket, BACKLOG)?;
        let Some(dead) = dead else {
            // A link, unlike a renaming, replaces nothing.
            return match linkat(directory, unnamed, directory, name, AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(error) => Err(error.into()),
            };
        };
        // Exchanged, and looked at: what a third process has put there meanwhile goes back.
        let exchange = || renameat_with(directory, unnamed, directory, name, RenameFlags::EXCHANGE);
        match exchange() {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if place.look(unnamed)? == Some(dead) {
            place.remove(unnamed, dead);
            return Ok(true);
        }
        exchange()?;
        Ok(false)
    }
}

/// Connects to the process that listens at `path`, or listens there if none does. A connection does not block.
pub fn connect_or_listen(path: &Path) -> Result<Joined, Fault> {
    let mut place = Place::new(path)?;
    for _ in 0..ATTEMPTS_MAX {
        let look = || find(&place, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let mut found = look()?;
        let turn = matches!(found, Found::Dead(_)).then(|| place.turn());
        if turn.is_some() {
            found = look()?;
        }
        let dead = match found {
            Found::Listening(socket) => return Ok(Joined::Connected(socket)),
            Found::Nothing => None,
            Found::Dead(file) => Some(file),
        };
        let listener = Listener::at(place, dead)?;
        drop(turn);
        match listener {
            Ok(listener) => return Ok(Joined::Listening(listener)),
            Err(same) => place = same,
        }
    }
    Err(Fault::InUse)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.place.remove(&self.place.name, self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn dead(path: &Path) {
        drop(UnixListener::bind(path).unwrap());
        assert!(fs::symlink_metadata(path).unwrap().file_type().is_socket());
    }

    #[test]
    fn a_socket_has_mode_0600_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for is_dead in [false, true] {
            if is_dead {
                dead(&path);
            }
            let listener = Listener::new(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(matches!(Listener::new(&path), Err(Fault::InUse)));
            assert!(matches!(connect_or_listen(&path), Ok(Joined::Connected(_))));
            assert_eq!(names(dir.path()), ["socket"]);
            drop(listener);
            assert!(names(dir.path()).is_empty());
        }
    }

    #[test]
    fn what_is_no_dead_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "data").unwrap();
        fs::create_dir(path("directory")).unwrap();
        dead(&path("dead"));
        symlink("dead", path("link")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        let stream = UnixListener::bind(path("stream")).unwrap();
        for (name, why) in [
            ("file", "is a file, not a socket"),
            ("directory", "is a directory, not a socket"),
            ("link", "is a symbolic link, not a socket"),
            ("dangling", "is a symbolic link, not a socket"),
            ("stream", "another process listens there"),
        ] {
            let before = fs::symlink_metadata(path(name)).unwrap();
            let error = Listener::new(&path(name)).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
            let after = fs::symlink_metadata(path(name)).unwrap();
            assert_eq!((before.ino(), before.mtime()), (after.ino(), after.mtime()), "{name}");
        }
        assert_eq!(fs::read(path("file")).unwrap(), b"data");
        assert_eq!(names(dir.path()).len(), 6);
        drop(stream);
    }

    #[test]
    fn a_file_that_came_in_the_place_of_a_dead_socket_goes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        dead(&path);
        let place = Place::new(&path).unwrap();
        let Found::Dead(file) = find(&place, SocketFlags::CLOEXEC).unwrap() else { panic!("it is dead") };
        // Its inode is kept, or the file might get its number.
        fs::rename(&path, dir.path().join("before")).unwrap();
        fs::write(&path, "data").unwrap();
        assert!(Listener::at(place, Some(file)).unwrap().is_err());
        assert_eq!(fs::read(&path).unwrap(), b"data");
        assert_eq!(names(dir.path()).len(), 2);
        let place = Place::new(&path).unwrap();
        assert!(Listener::at(place, None).unwrap().is_err(), "nor in the place of nothing");
        assert_eq!((fs::read(&path).unwrap(), names(dir.path()).len()), (b"data".to_vec(), 2));
    }

    #[test]
    fn a_listener_does_not_remove_what_replaced_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::new(&path).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::write(&path, "data").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn paths_are_as_long_as_an_address_and_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let most = PATH_BYTES_MAX - dir.path().as_os_str().len() - 1;
        let longest = dir.path().join("s".repeat(most));
        let listener = Listener::new(&longest).unwrap();
        assert!(
            UnixStream::connect(&longest).is_err_and(|error| error.raw_os_error() == Some(libc::EPROTOTYPE))
        );
        drop(listener);
        let error = Listener::new(&dir.path().join("s".repeat(most + 1))).unwrap_err().to_string();
        assert_eq!(error, "the path has 108 bytes, the path of a socket at most 107");
        assert!(matches!(Listener::new(Path::new("/")), Err(Fault::Nameless)));
        let error = Listener::new(&dir.path().join("none/socket")).unwrap_err();
        assert!(matches!(error, Fault::Directory { .. }), "{error}");
    }
}
