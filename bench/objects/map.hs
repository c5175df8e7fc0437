-- A balanced tree under a copying collector: each change makes a path of new nodes.
import Data.List (foldl')
import qualified Data.Map.Strict as Map

next :: Int -> Int
next seed = (seed * 1103515245 + 12345) `mod` 2147483648

main :: IO ()
main = do
  let keys = take 700000 (iterate next 42)
      tree = foldl' (\t (key, i) -> Map.insert key i t) Map.empty (zip keys [1 :: Int ..])
      found = foldl' (\sum key -> sum + Map.findWithDefault 0 key tree) 0 (take 300000 (iterate next 777))
  print (Map.size tree, found, sum (Map.elems tree))
