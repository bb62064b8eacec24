use std::env::args;
use std::ffi::CString;
use std::process::exit;

fn classify(package: &str, file: &str) -> Result<(usize, f32), String> {
    let path = CString::new(package).map_err(|e| e.to_string())?;
    let mut model = net::Model::open(Some(&path), 1).map_err(|e| e.to_string())?;
    let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
    let x: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut y = vec![0f32; model.output(0, 0).bytes / 4];
    model.run(0, [net::bytes_of(&x)], [net::bytes_of_mut(&mut y)]).map_err(|e| e.to_string())?;
    let best = (0..y.len()).max_by(|&a, &b| y[a].total_cmp(&y[b])).ok_or("the output is empty")?;
    Ok((best, y[best]))
}

fn main() {
    let words: Vec<String> = args().collect();
    if words.len() != 3 {
        eprintln!("usage: classify PACKAGE INPUT");
        exit(2);
    }
    match classify(&words[1], &words[2]) {
        Ok((best, score)) => println!("{best} {score:.6}"),
        Err(sentence) => {
            eprintln!("{sentence}");
            exit(1);
        }
    }
}
