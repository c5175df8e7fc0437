#[test] fn x() { println!("{:?}", std::env::current_exe()); }
