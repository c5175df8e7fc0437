//! Patches the system call sites of libc.
//!
//! A site is `mov eax, nr; syscall`, seven bytes, which become a jump to a stub. In the generic `syscall()` function the number is
//! in eax already, and the site is `syscall; cmp rax, -4095`, eight bytes. A stub calls [`super::on_syscall`], and then goes on
//! behind the site in one of three ways ([`How`]).
//!
//! ```text
//!   site       jmp stub                              libc's text
//!   stub       mov eax, nr; rcx = done; jmp common   one for each site, on a page near libc
//!     done     (cmp rax, -4095;) jmp resume          the call has been made
//!     pass     syscall; (cmp rax, -4095;) jmp resume the call is to be made here: in a new thread it returns on another stack
//! ```

use super::on_syscall;
use core::arch::global_asm;
use core::ffi::CStr;
use overspill_linux::sys::{self, Errno};

/// The function of libc that makes a system call.
enum Function {
    /// One that libc exports.
    Exported(&'static CStr),
    /// One that libc does not export. Its call is the only one of that number in libc's text.
    Hidden(&'static CStr),
    /// One that libc exports. If its site is not recognised, it is not followed.
    Optional(&'static CStr),
}

/// The system calls that are followed, with the libc functions that make them.
const SITES: &[(Function, libc::c_long)] = &[
    (Function::Exported(c"mmap"), libc::SYS_mmap),
    (Function::Exported(c"munmap"), libc::SYS_munmap),
    (Function::Exported(c"mremap"), libc::SYS_mremap),
    (Function::Exported(c"brk"), libc::SYS_brk),
    (Function::Exported(c"madvise"), libc::SYS_madvise),
    (Function::Exported(c"mlock"), libc::SYS_mlock),
    (Function::Exported(c"mlock2"), libc::SYS_mlock2),
    (Function::Exported(c"mlockall"), libc::SYS_mlockall),
    (Function::Exported(c"munlock"), libc::SYS_munlock),
    (Function::Exported(c"munlockall"), libc::SYS_munlockall),
    (Function::Exported(c"_Fork"), libc::SYS_clone),
    (Function::Exported(c"clone"), libc::SYS_clone),
    (Function::Exported(c"clone"), libc::SYS_exit), // made when the thread's function returns
    (Function::Hidden(c"clone3"), libc::SYS_clone3),
    (Function::Exported(c"syscall"), ANY),
    // for a process of one thread; for others see SETXID
    (Function::Exported(c"setuid"), libc::SYS_setuid),
    (Function::Exported(c"setgid"), libc::SYS_setgid),
    (Function::Exported(c"setreuid"), libc::SYS_setreuid),
    (Function::Exported(c"setregid"), libc::SYS_setregid),
    (Function::Exported(c"setresuid"), libc::SYS_setresuid),
    (Function::Exported(c"setresgid"), libc::SYS_setresgid),
    (Function::Exported(c"seteuid"), libc::SYS_setresuid),
    (Function::Exported(c"setegid"), libc::SYS_setresgid),
    (Function::Exported(c"setgroups"), libc::SYS_setgroups),
    (Function::Exported(c"capset"), libc::SYS_capset),
    (Function::Exported(c"prctl"), libc::SYS_prctl),
    (Function::Exported(c"ioctl"), libc::SYS_ioctl),
    (Function::Exported(c"unshare"), libc::SYS_unshare),
    (Function::Exported(c"setns"), libc::SYS_setns),
    (Function::Exported(c"fstatat"), libc::SYS_newfstatat),
    (Function::Optional(c"process_madvise"), libc::SYS_process_madvise),
    (Function::Optional(c"prlimit"), libc::SYS_prlimit64),
    (Function::Optional(c"getrlimit"), PRLIMIT_OF_SELF),
    (Function::Optional(c"setrlimit"), PRLIMIT_OF_SELF),
    (Function::Optional(c"execve"), libc::SYS_execve),
    (Function::Optional(c"execveat"), libc::SYS_execveat),
    (Function::Optional(c"fexecve"), libc::SYS_execveat),
];
/// Functions that call libc's `__nptl_setxid` if the process has several threads. It makes each of them make the system call, and
/// returns the result. libc does not export it, so these calls of it are patched ([`super::credentials::on_setxid`]).
const SETXID: &[(&CStr, libc::c_long)] = &[
    (c"setuid", libc::SYS_setuid),
    (c"setgid", libc::SYS_setgid),
    (c"setreuid", libc::SYS_setreuid),
    (c"setregid", libc::SYS_setregid),
    (c"setresuid", libc::SYS_setresuid),
    (c"setresgid", libc::SYS_setresgid),
    (c"seteuid", libc::SYS_setresuid),
    (c"setegid", libc::SYS_setresgid),
    (c"setgroups", libc::SYS_setgroups),
];
/// The call lies within this many bytes behind the store of the system call's number.
const CALL_WITHIN: usize = 48;
/// The number is in eax already: `syscall()`.
const ANY: libc::c_long = -1;
/// prlimit64 with `xor edi, edi` between the number and the call.
const PRLIMIT_OF_SELF: libc::c_long = -2;
/// A site lies within this many bytes of its function's start.
const SITE_WITHIN: usize = 160;
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// `syscall; cmp rax, -4095`.
const SITE_OF_ANY: [u8; 8] = [0x0F, 0x05, 0x48, 0x3D, 0x01, 0xF0, 0xFF, 0xFF];
/// Bytes of the longest site.
const SITE_MAX: usize = 9;
/// Bytes of a stub, and the offsets in it of the two ways back.
const STUB_LEN: usize = 96;
const DONE: usize = 32;
const PASS: usize = 64;
/// Bytes for all stubs.
const STUBS_LEN: usize = 4096;
const _: () = assert!((SITES.len() + 1) * STUB_LEN <= STUBS_LEN);

/// How a site goes on.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How(usize);

impl How {
    /// The call has been made; the result is its answer.
    pub const DONE: How = How(0);
    /// The call must be made at the site, as it is.
    pub const PASS: How = How(1);
    /// As DONE, with `top` as the stack pointer from then on: for a forked child that was given a stack. => `top` is neither 0 nor
    /// 1
    pub fn on_stack(top: usize) -> How {
        How(top)
    }
}

/// A hook's answer to its site, in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Verdict {
    /// The system call's answer: minus an error number if it failed.
    pub result: isize,
    /// How to go on.
    pub how: How,
}

impl Verdict {
    /// The call has been made.
    pub fn done(result: isize) -> Self {
        Verdict { result, how: How::DONE }
    }
    /// The call must be made at the site.
    pub fn pass() -> Self {
        Verdict { result: 0, how: How::PASS }
    }
}

// What a stub jumps to: eax = system call, rcx = the stub's way back; arguments in the system call's registers. Everything but rax,
// rcx, r11 is preserved, as the kernel does (vector registers too: libc's code around the site does not expect them to change).
global_asm!(
    ".globl overspill_hook_common",
    ".hidden overspill_hook_common",
    "overspill_hook_common:",
    "lea rsp, [rsp - 128]", // the red zone of a leaf function
    "push rax",
    "push rcx",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov rsi, rsp",
    "mov edi, eax",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "sub rsp, 256",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "call {hook}",
    "mov r11, rdx",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbp",
    "pop rbp",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "cmp r11, 1",
    "je 2f",
    "lea rsp, [rsp + 136]",
    "test r11, r11",
    "cmovnz rsp, r11",
    "jmp rcx",
    "2:", // pass
    "pop rax",
    "lea rsp, [rsp + 128]",
    "add rcx, {pass}",
    "jmp rcx",
    hook = sym on_syscall,
    pass = const PASS - DONE,
);

unsafe extern "C" {
    fn overspill_hook_common();
}

/// Where libc's sites are.
pub struct Sites {
    of_calls: [Option<usize>; SITES.len()],
    /// The calls of `__nptl_setxid` in the functions of [`SETXID`].
    of_setxid: [usize; SETXID.len()],
    setxid: usize,
    /// An address within libc's text.
    text: usize,
}

impl Sites {
    /// Finds them.
    ///
    /// # Errors
    /// The function whose site was not recognised.
    pub fn find() -> Result<Sites, &'static CStr> {
        // libc's own, and not those of another library (tcmalloc has an mmap, torsocks a syscall)
        // SAFETY: names end with a zero. libc is loaded already, so no code is run, and it is never unloaded.
        let libc_itself = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if libc_itself.is_null() {
            return Err(c"libc.so.6");
        }
        // SAFETY: looks a name up.
        let function = |name: &CStr| unsafe { libc::dlsym(libc_itself, name.as_ptr()) } as usize;
        let text = function(c"mmap");
        let mut of_calls = [None; SITES.len()];
        for ((place, nr), site) in SITES.iter().zip(&mut of_calls) {
            let pattern = pattern(*nr);
            let (name, found) = match place {
                Function::Exported(name) | Function::Optional(name) => {
                    (name, Some(function(name)).filter(|at| *at != 0).and_then(|at| find_site(at, &pattern)))
                }
                Function::Hidden(name) => (name, find_hidden(text, &pattern)),
            };
            if found.is_none() && !matches!(place, Function::Optional(_)) {
                return Err(name);
            }
            *site = found;
        }
        let mut of_setxid = [0; SETXID.len()];
        let mut setxid = 0;
        for ((name, nr), call) in SETXID.iter().zip(&mut of_setxid) {
            let (at, target) = find_setxid_call(function(name), *nr).ok_or(*name)?;
            if setxid != 0 && setxid != target {
                return Err(name); // the target is not `__nptl_setxid`
            }
            (*call, setxid) = (at, target);
        }
        Ok(Sites { of_calls, of_setxid, setxid, text })
    }

    /// Patches them.
    ///
    /// # Errors
    /// The function whose site could not be patched. Sites before it stay patched (and harmless).
    pub fn patch(self, text: Text) -> Result<(), &'static CStr> {
        let stubs = near(self.text).ok_or(c"mmap")?;
        for (i, ((place, nr), site)) in SITES.iter().zip(self.of_calls).enumerate() {
            let Some(site) = site else { continue };
            let stub = stubs + i * STUB_LEN;
            let len = pattern(*nr).len();
            write_stub(stub, *nr, site + len);
            let distance = stub as isize - (site as isize + 5);
            let Ok(distance) = i32::try_from(distance) else { return Err(place.name()) };
            let mut patch = [0x90; SITE_MAX];
            patch[0] = 0xE9; // jmp stub
            patch[1..5].copy_from_slice(&distance.to_le_bytes());
            text.write(site, &patch[..len]).ok_or(place.name())?;
        }
        super::credentials::set_real_setxid(self.setxid);
        let stub = stubs + SITES.len() * STUB_LEN;
        let mut code = Code { bytes: [0x90; STUB_LEN], at: 0 };
        code.put(&[0x48, 0xB8]); // movabs rax, on_setxid
        code.put(&(super::credentials::on_setxid as *const () as usize).to_le_bytes());
        code.put(&[0xFF, 0xE0]); // jmp rax
        // SAFETY: the stub page is ours, writable, and long enough.
        unsafe { core::ptr::copy_nonoverlapping(code.bytes.as_ptr(), stub as *mut u8, STUB_LEN) };
        for ((name, _), call) in SETXID.iter().zip(self.of_setxid) {
            let distance = i32::try_from(stub as isize - (call as isize + 5)).map_err(|_| *name)?;
            text.write(call + 1, &distance.to_le_bytes()).ok_or(*name)?;
        }
        // SAFETY: the stubs are complete; they need not be written again.
        let _ =
            unsafe { sys::syscall6(libc::SYS_mprotect, stubs, STUBS_LEN, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0) };
        Ok(())
    }
}

impl Function {
    fn name(&self) -> &'static CStr {
        match self {
            Function::Exported(name) | Function::Hidden(name) | Function::Optional(name) => name,
        }
    }
}

/// The bytes of a site.
struct Pattern {
    bytes: [u8; SITE_MAX],
    len: usize,
}

impl core::ops::Deref for Pattern {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Pattern {
    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }
}

fn pattern(nr: libc::c_long) -> Pattern {
    let none = Pattern { bytes: [0; SITE_MAX], len: 0 };
    match nr {
        ANY => none.put(&SITE_OF_ANY),
        nr => none.put(&number(nr)).put(between(nr)).put(&SYSCALL),
    }
}

/// `mov eax, nr`.
fn number(nr: libc::c_long) -> [u8; 5] {
    let nr = if nr == PRLIMIT_OF_SELF { libc::SYS_prlimit64 } else { nr };
    let [a, b, c, d] = (nr as i32).to_le_bytes();
    [0xB8, a, b, c, d]
}

/// What stands between the number and the call.
fn between(nr: libc::c_long) -> &'static [u8] {
    if nr == PRLIMIT_OF_SELF { &[0x31, 0xFF] } else { &[] } // xor edi, edi
}

fn find_site(function: usize, pattern: &[u8]) -> Option<usize> {
    // SAFETY: libc's text around one of its functions is mapped and readable; a page beyond it would be libc's too.
    let text = unsafe { core::slice::from_raw_parts(function as *const u8, SITE_WITHIN) };
    text.windows(pattern.len()).position(|w| w == pattern).map(|at| function + at)
}

/// The place where `function` calls `__nptl_setxid` with the number `nr`, and the address of that: the first call after `mov dword
/// [rsp], nr`.
fn find_setxid_call(function: usize, nr: libc::c_long) -> Option<(usize, usize)> {
    let mut store = [0xC7, 0x04, 0x24, 0, 0, 0, 0];
    store[3..].copy_from_slice(&(nr as i32).to_le_bytes());
    let at = find_site(function, &store).filter(|_| function != 0)? + store.len();
    // SAFETY: libc's text, as in `find_site`.
    let text = unsafe { core::slice::from_raw_parts(at as *const u8, CALL_WITHIN) };
    let call = text.windows(5).position(|w| w[0] == 0xE8)?;
    let distance = i32::from_le_bytes(text[call + 1..call + 5].try_into().ok()?);
    Some((at + call, (at + call + 5).wrapping_add_signed(distance as isize)))
}

/// The only occurrence in the mapping that holds `function`.
fn find_hidden(function: usize, pattern: &[u8]) -> Option<usize> {
    let mut found = None;
    sys::each_mapping(|start, end| {
        if (start..end).contains(&function) {
            found = Some((start, end));
        }
    })
    .ok()?;
    let (start, end) = found?;
    // SAFETY: a mapping of libc's text, readable as a whole, which is never unmapped.
    let text = unsafe { core::slice::from_raw_parts(start as *const u8, end - start) };
    let mut places = memchr::memmem::find_iter(text, pattern); // at every start of a process, over more than a megabyte
    places.next().filter(|_| places.next().is_none()).map(|at| start + at)
}

/// Pages for stubs within reach of a 32-bit jump from `text`.
fn near(text: usize) -> Option<usize> {
    let base = text & !0xFFFF;
    for step in 1..0x4000usize {
        for at in [base.checked_sub(step << 16), base.checked_add(step << 16)].into_iter().flatten() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: NOREPLACE: overlaps nothing.
            if unsafe { sys::syscall6(libc::SYS_mmap, at, STUBS_LEN, prot as usize, flags as usize, usize::MAX, 0) } == Ok(at) {
                return Some(at);
            }
        }
    }
    None
}

/// Writes bytes one after the other.
struct Code {
    bytes: [u8; STUB_LEN],
    at: usize,
}

impl Code {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    /// The way back: the comparison that was in the site, if there was one, and the jump.
    fn put_return(&mut self, nr: libc::c_long, resume: usize) {
        if nr == ANY {
            self.put(&SITE_OF_ANY[2..]);
        }
        self.put(&[0xFF, 0x25, 0, 0, 0, 0]); // jmp [rip]: to the address that follows
        self.put(&resume.to_le_bytes());
    }
}

fn write_stub(stub: usize, nr: libc::c_long, resume: usize) {
    let mut code = Code { bytes: [0x90; STUB_LEN], at: 0 };
    if nr != ANY {
        code.put(&number(nr));
        code.put(between(nr));
    }
    code.put(&[0x48, 0xB9]); // movabs rcx, stub + DONE
    code.put(&(stub + DONE).to_le_bytes());
    code.put(&[0x49, 0xBB]); // movabs r11, common
    code.put(&(overspill_hook_common as *const () as usize).to_le_bytes());
    code.put(&[0x41, 0xFF, 0xE3]); // jmp r11
    assert!(code.at <= DONE);
    code.at = DONE;
    code.put_return(nr, resume);
    assert!(code.at <= PASS);
    code.at = PASS;
    code.put(&SYSCALL);
    code.put_return(nr, resume);
    // SAFETY: the stub page is ours, writable, and long enough.
    unsafe { core::ptr::copy_nonoverlapping(code.bytes.as_ptr(), stub as *mut u8, STUB_LEN) };
}

/// The program's text, to be written through /proc/self/mem, which needs no writable and executable mapping.
pub struct Text(sys::Fd);

impl Text {
    /// # Errors
    /// EACCES if the program may be executed but not read: its /proc/self/mem is root's, as it must give nothing away. As open(2).
    pub fn open() -> Result<Self, Errno> {
        sys::open(b"/proc/self/mem\0", libc::O_RDWR | libc::O_CLOEXEC, 0).map(Text)
    }
    fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        // SAFETY: replaces the bytes of libc's text that were checked to be one site, in our own copy of the page, while the
        // process has one thread.
        let n = unsafe { sys::syscall6(libc::SYS_pwrite64, self.0.raw() as usize, bytes.as_ptr() as usize, bytes.len(), at, 0, 0) };
        (n == Ok(bytes.len())).then_some(())
    }
}
